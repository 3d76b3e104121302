"""The executor's form of a tensor map: where each field lies in the 128 bytes, for Python and for native code."""

MAGIC = 0x70616D726F736E65  # bytes that an opaque map of the CUDA driver does not begin with
# field: (offset, struct format); dims are kept less one, strides[0] is an element's bytes
FIELDS = {
    "magic": (0, "Q"), "address": (8, "Q"), "strides": (16, "5Q"), "last": (56, "5I"), "box": (76, "5H"),
    "steps": (86, "5B"), "rank": (91, "B"), "element": (92, "B"), "swizzle": (93, "B"), "nan": (94, "B"),
    "dtype": (95, "B"),
}  # fmt: skip
# .elemtype of tensormap.replace (PTX ISA, "tensormap.replace") -> the code kept here, bytes
ELEMENT_TYPES = {0: (0, 1), 1: (1, 2), 2: (2, 4), 3: (3, 4), 4: (4, 8), 5: (5, 8), 6: (6, 2), 7: (7, 4), 9: (8, 8),
                 10: (9, 2)}  # fmt: skip
OFFSET = {name: offset for name, (offset, _) in FIELDS.items()}
