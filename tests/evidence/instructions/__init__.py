"""One tiny PTX text per instruction form, its inputs, and results recorded on a GPU, in the manner of ZLUDA's tests."""
