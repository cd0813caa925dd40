"""The stand-in vLLM of the practice node: `install` puts it into a virtual environment, `wheel` makes a wheel of it.

The package itself is `standin`: stdlib only, and installed under the name `vllm`.
"""
