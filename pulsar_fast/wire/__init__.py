"""The binary protocol's messages.

`pulsar_fast.proto` is their definition; `messages.py` and `messages.pyi` are generated from it by
`python -m pulsar_fast.wire.generate`.
"""
