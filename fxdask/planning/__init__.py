"""How a job is split into tasks, and the memory, reads and disk space that it needs: integer arithmetic only."""
