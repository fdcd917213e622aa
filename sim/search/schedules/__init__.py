"""The best plan of a schedule that no formula describes: bounds first, then order by order, then the exact engine."""
