"""A stand-in vLLM for rehearsals: it reads model folders, takes "GPU memory", logs, serves and fails as vLLM does.

Stdlib only. Installed into a virtual environment under the name `vllm`; nothing here computes a model.
"""

from ._version import __version__

__all__ = ["__version__"]
