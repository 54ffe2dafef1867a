"""What a job takes and how it is cut: integers only."""
