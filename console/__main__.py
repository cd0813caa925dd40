"""`python -m console` is `relaunch`."""

from console.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
