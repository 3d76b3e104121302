"""What `ptxgen tune` measures, a job for each class of shapes, and how it decides. Measures nothing."""
