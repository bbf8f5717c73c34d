"""The paper's evaluation: tasks, arms, quality, statistics."""
