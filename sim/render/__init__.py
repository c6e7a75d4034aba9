"""What is printed: tables, CSV, JSON and Markdown of every result."""
