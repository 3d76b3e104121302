"""The main loop on tensor cores, with loads to registers or with stages in shared memory."""
