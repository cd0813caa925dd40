"""The model's files: hub download, shard check, quantization config, KV decision, overlay, memory fit."""
