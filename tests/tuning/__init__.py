"""Tests of tuning tables and `ptxgen tune`."""
