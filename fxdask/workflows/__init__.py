"""Check the data, plan the work, run the tasks and assemble the result."""
