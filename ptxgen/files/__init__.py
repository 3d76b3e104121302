"""Files that commands read and write: archives of arrays, listings, JSON fields, whole or not at all."""
