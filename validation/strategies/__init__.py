"""Lamy-Poirier's study of strategies: his table, by search instead of by formula."""
