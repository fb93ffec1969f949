"""Tuning: which way to join the legs ranks best, from judged queries; and what is safe without any."""
