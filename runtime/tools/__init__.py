"""What the command line does with devices: trials of a kernel, recordings of a launch, timing for tuning."""
