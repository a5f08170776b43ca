"""The search loop, with the base classes of strategies, problems, refiners and backends."""
