"""From checked data through plan and tasks to a result."""
