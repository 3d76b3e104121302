"""Arrays beside plain buffers: other libraries' arrays, DLPack, tensor maps, strided blocks."""
