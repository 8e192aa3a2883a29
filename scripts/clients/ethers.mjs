// Calls the RPC server with ethers 6. Usage: node ethers.mjs URL

import { JsonRpcProvider, Wallet } from "ethers";
import { accepted, transaction, unsupported } from "./report.mjs";

const [url] = process.argv.slice(2);
// No network is given, so the provider asks for the chain id.
const provider = new JsonRpcProvider(url);
const sign = { ...transaction(0), gasLimit: 21000, type: 2 };
const raw = await Wallet.createRandom().signTransaction(sign);
// It asks for the block number too, and throws if that fails.
const sent = await provider.broadcastTransaction(raw);
accepted("broadcast transaction", sent.hash);
accepted("block number", await provider.getBlockNumber());
accepted("network", (await provider.getNetwork()).chainId);
await unsupported("balance", () => provider.getBalance(sent.from));
await unsupported("transaction count", () => provider.getTransactionCount(sent.from));
await unsupported("fee data", () => provider.getFeeData());
await unsupported("receipt", () => provider.getTransactionReceipt(sent.hash));
process.exit(0);
