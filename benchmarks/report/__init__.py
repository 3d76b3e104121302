"""Rows of results, and the tables, documents and charts made from them."""
