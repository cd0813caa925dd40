"""What a satisfied redeploy looks at, as a pyinfra deploy: 6 operations."""

from pyinfra import host  # type: ignore[import-not-found]
from pyinfra.operations import files, server, systemd  # type: ignore[import-not-found]

files.directory(name="model", path="/srv/models/Kimi-K2.5-NVFP4")
files.put(name="unit", src=host.data.unit, dest="/etc/systemd/system/vllm-kimi.service", mode="644")
systemd.service(name="old stopped", service="vllm-glm5.service", running=False)
systemd.service(name="new started", service="vllm-kimi.service", running=True, enabled=True)
server.shell(name="gpus", commands=["nvidia-smi --query-gpu=index,memory.used --format=csv,noheader"])
server.shell(
    name="generation",
    commands=[
        "python3 -c \"import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:8000/v1/completions', "
        'b\'{\\"model\\":\\"kimi-k2.5\\",\\"prompt\\":\\"The capital of France is\\",\\"max_tokens\\":16}\', '
        "{'Content-Type':'application/json'})).read()\""
    ],
)
