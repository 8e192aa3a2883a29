"""Calls the RPC server with the package `flashbots` of PyPI. Usage: python.py URL BLOCK

Prints a line for each call: its name and the answer that the client accepted, or the client's own error for a call
that only a node or a relay can answer."""

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


def accepted(name, answer):
    print(name, answer, sep="\t")


def unsupported(name, call):
    """The call must fail with an error of the client that names the unknown method."""
    try:
        answer = call()
    except Exception as error:
        assert "does not exist" in str(error), error
        print(name, f"error: {type(error).__name__}", sep="\t")
    else:
        raise AssertionError(f"{name}: {answer}")


key = str(uuid.uuid4())
for name, nonce in [("send bundle", 0), ("replace bundle", 1)]:
    transactions = [{"signed_transaction": signed(nonce)}]
    sent = w3.flashbots.send_bundle(transactions, block, opts={"replacementUuid": key})
    accepted(name, Web3.to_hex(sent.bundle_hash()))
w3.flashbots.cancel_bundles(key)
accepted("cancel bundle", "ok")
sent = w3.flashbots.send_raw_bundle([signed(0)], block)
accepted("send raw bundle", sent["bundleHash"])
# Asks for the block number until the target block, which is the head.
sent = w3.flashbots.send_bundle([{"signed_transaction": signed(1)}], block)
sent.target_block_number = w3.eth.block_number
sent.wait()
accepted("wait for bundle", "ok")
unsupported("simulate", lambda: w3.flashbots.simulate([{"signed_transaction": signed(0)}], block))
unsupported("call bundle", lambda: w3.flashbots.call_bundle([signed(0)], hex(block), "latest", 0))
bundle_hash = Web3.to_hex(sent.bundle_hash())
for version in ["", "_v2"]:
    user_stats = getattr(w3.flashbots, "get_user_stats" + version)
    unsupported("user stats" + version.replace("_", " "), user_stats)
    bundle_stats = getattr(w3.flashbots, "get_bundle_stats" + version)
    unsupported("bundle stats" + version.replace("_", " "), lambda: bundle_stats(bundle_hash, block))

raw = signed(2)
sent = w3.flashbots.send_private_transaction({"signed_transaction": raw}, block)
accepted("send private", Web3.to_hex(sent.tx["hash"]))
cancelled = w3.flashbots.cancel_private_transaction(Web3.to_hex(Web3.keccak(raw)))
assert cancelled is True, cancelled
accepted("cancel private", "true")
# Asks for the block number, to which it adds 25.
sent = w3.flashbots.send_private_transaction({"signed_transaction": signed(3)})
accepted("send private without a block", Web3.to_hex(sent.tx["hash"]))
unsupported("wait for private", sent.wait)
sent = w3.eth.send_raw_transaction(signed(4))
accepted("send raw transaction", Web3.to_hex(sent))
