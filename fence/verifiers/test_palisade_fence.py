"""What the shared vectors cannot show: options that the verifier does not accept.

    python3 -m unittest discover -s fence/verifiers
"""

import unittest

from palisade_fence import Verifier


class RefusedKeys(unittest.TestCase):
    def test_id_of_a_refused_key_has_eight_bytes(self):
        for text in ("00c0ffee00c0ffee", "00C0FFEE00C0FFEE"):
            verifier = Verifier("billing", [], refused=[text])
            self.assertEqual(verifier.refused, {bytes.fromhex("00c0ffee00c0ffee")})

    def test_id_of_another_form_is_an_error(self):
        short, long = "00c0ffee00c0ff", "00c0ffee00c0ffee00"
        spaced, spaced_long = "00c0ffee 00c0ffe", "00c0ffee 00c0ffee"
        others = ("", "00c0ffee00c0ffeg", "0x00c0ffee00c0ff", "00c0ffee00c0ffee\n", "٠" * 16)
        for text in (short, long, spaced, spaced_long, *others):
            with self.subTest(text=text), self.assertRaises(ValueError):
                Verifier("billing", [], refused=[text])

    def test_one_text_in_place_of_a_list_is_an_error(self):
        with self.assertRaises(ValueError):
            Verifier("billing", [], refused="00c0ffee00c0ffee")


if __name__ == "__main__":
    unittest.main()
