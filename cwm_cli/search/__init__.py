"""The search loop, and what it asks of strategies, problems and backends."""
