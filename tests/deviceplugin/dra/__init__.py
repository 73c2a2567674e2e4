"""Tests of the DRA driver."""
