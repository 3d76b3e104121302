"""What a specialisation's fields are and may hold: declarations, values, sizes, examples, what is legal where."""
