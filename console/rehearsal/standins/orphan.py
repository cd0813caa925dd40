"""A process of nobody that holds GPU memory: `orphan [MIB [GPU ...]]`; without figures what a lost worker of a big model holds, on GPU 3.

It ends on any signal. Needs `gpu_state` as nvidia_smi does.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from console.rehearsal.vllm.standin import gpu_state
else:
    _here = Path(__file__).resolve().parent
    sys.path += [str(_here), str(_here.parent / "vllm" / "standin")]
    import gpu_state


def main(argv: Sequence[str]) -> int:
    """Hold memory until a signal."""
    mib = int(argv[0]) if argv else 86_214
    root = gpu_state.practice_root()
    for index in [int(word) for word in argv[1:]] or [3]:
        gpu_state.hold(root, index, mib, name="python3 train.py")
    print("holding", flush=True)
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
