"""Reports of results: as text, JSON, Markdown and HTML, and on the terminal."""
