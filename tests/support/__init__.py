"""What several test files share: devices, small kernels, fakes and oracles of a KV cache."""
