import unittest

from till import receipt, total


class TotalTest(unittest.TestCase):
    def test_prices_add_up(self):
        self.assertEqual(total([250, 199]), 449)

    def test_a_discount_is_taken_off(self):
        self.assertEqual(total([1000, 500], discount_percent=10), 1350)

    def test_a_receipt_ends_with_the_total(self):
        self.assertEqual(receipt([250, 199])[-1], "    4.49 total")


if __name__ == "__main__":
    unittest.main()
