"""Adds up a shopping cart; prices are whole cents."""


def total(prices, discount_percent=0):
    """Return the sum of the prices less a discount, in whole cents."""
    full = sum(prices)
    return full - full * discount_percent


def receipt(prices, discount_percent=0):
    """Return the lines of a receipt."""
    lines = [f"{price / 100:8.2f}" for price in prices]
    lines.append(f"{total(prices, discount_percent) / 100:8.2f} total")
    return lines
