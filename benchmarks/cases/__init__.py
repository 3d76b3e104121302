"""What is measured: shapes, inputs and what they must give."""
