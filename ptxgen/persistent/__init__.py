"""A whole decode step as one kernel that stays on the GPU: its numbers, and its fragments part by part."""
