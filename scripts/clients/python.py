"""The package flashbots of PyPI: a bundle, its replacement, its cancellation, a private transaction and
its cancellation. Usage: python.py URL BLOCK"""

import sys
import uuid

from eth_account import Account
from flashbots import flashbot
from web3 import HTTPProvider, Web3

url, block = sys.argv[1], int(sys.argv[2])
w3 = Web3(HTTPProvider(url))
searcher, sender = Account.create(), Account.create()
flashbot(w3, searcher, url)


def signed(nonce):
    transaction = {
        "chainId": 1337,
        "nonce": nonce,
        "gas": 21000,
        "maxFeePerGas": 2_000_000_000,
        "maxPriorityFeePerGas": 1_000_000_000,
        "to": Web3.to_checksum_address("0x" + "aa" * 20),
        "value": 1,
        "type": 2,
    }
    signed = sender.sign_transaction(transaction)
    return getattr(signed, "raw_transaction", None) or signed.rawTransaction


key = str(uuid.uuid4())
for name, nonce in [("send bundle", 0), ("replace bundle", 1)]:
    transactions = [{"signed_transaction": signed(nonce)}]
    sent = w3.flashbots.send_bundle(transactions, block, opts={"replacementUuid": key})
    print(name, Web3.to_hex(sent.bundle_hash()), sep="\t")
w3.flashbots.cancel_bundles(key)
print("cancel bundle", "ok", sep="\t")

raw = signed(2)
sent = w3.flashbots.send_private_transaction({"signed_transaction": raw}, block)
print("send private", Web3.to_hex(sent.tx["hash"]), sep="\t")
cancelled = w3.flashbots.cancel_private_transaction(Web3.to_hex(Web3.keccak(raw)))
assert cancelled is True, cancelled
print("cancel private", "true", sep="\t")
