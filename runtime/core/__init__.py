"""What every backend shares. Beside `memory` and `launches`: what a backend supplies, streams, the device, a `Step`."""
