// ethers 6: a raw transaction by `broadcastTransaction`, which asks for the block beside it, and what its provider
// asks for on its own. Usage: node ethers.mjs URL

import { JsonRpcProvider, Wallet } from "ethers";

const [url] = process.argv.slice(2);
// No network is given, so that it asks for the chain.
const provider = new JsonRpcProvider(url);
const raw = await Wallet.createRandom().signTransaction({
  chainId: 1337,
  nonce: 0,
  gasLimit: 21000,
  maxFeePerGas: 2_000_000_000,
  maxPriorityFeePerGas: 1_000_000_000,
  to: "0x" + "aa".repeat(20),
  value: 1,
  type: 2,
});
const sent = await provider.broadcastTransaction(raw);
console.log(`broadcast\t${sent.hash}`);
console.log(`block number\t${await provider.getBlockNumber()}`);
console.log(`chain id\t${(await provider.getNetwork()).chainId}`);
// What only a node knows is the client's own error.
const balance = await provider.getBalance(sent.from).catch((error) => error);
if (!(balance instanceof Error)) throw new Error(`balance: ${balance}`);
console.log(`balance\t${balance.shortMessage ?? balance.code}`);
process.exit(0);
