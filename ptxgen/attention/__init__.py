"""What attention kernels share: what is computed, the parts of decode and of prefill, and the reference of both."""
