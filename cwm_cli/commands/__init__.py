"""Acting in environments and searching for programs: what the commands do."""
