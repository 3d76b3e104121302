"""What documents say of the rows: their tables and sentences, a file a part."""
