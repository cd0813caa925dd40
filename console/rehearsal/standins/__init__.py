"""Programs that a practice node lacks and that know no systemd: `nvidia_smi`, `uv`, `orphan`. Each runs as a script."""
