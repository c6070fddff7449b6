"""What people see of a run: metrics, progress, tables, the report."""
