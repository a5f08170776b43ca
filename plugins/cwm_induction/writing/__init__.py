"""Write programs as source text: ordered statements, names, numbers and line breaks."""
