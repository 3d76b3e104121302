"""The producer: the warp that copies weights and tokens into the ring, stage by stage.

`copier`: what all ways have in common. `elected_lane`: one lane brings everything. `all_lanes`: each lane brings a
record.
"""
