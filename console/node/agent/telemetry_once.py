"""Runs on the node: one sample of the GPUs by the best source there is. Stdlib only, Python 3.6-safe."""

from typing import Any, Dict, List, Sequence

from console.node.agent.nvml import Gone, broken, open_nvml
from console.node.agent.smi import smi_sample


def once(venvs: Sequence[str] = (), bundle: str = "") -> List[Dict[str, Any]]:
    """The lines of one sample, by the best source there is. For the facts script."""
    session, trouble = open_nvml(venvs, bundle)
    if session is None:
        return trouble or smi_sample()
    try:
        return session.sample()
    except Gone as failure:
        return broken(session.source, str(failure))
    finally:
        session.close()
