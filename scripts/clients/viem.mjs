// Calls the RPC server with viem. Usage: node viem.mjs URL

import { createPublicClient, http } from "viem";
import { generatePrivateKey, privateKeyToAccount } from "viem/accounts";
import { accepted, transaction, unsupported } from "./report.mjs";

const [url] = process.argv.slice(2);
const client = createPublicClient({ transport: http(url, { retryCount: 0 }) });
const account = privateKeyToAccount(generatePrivateKey());
const sign = { ...transaction(0), gas: 21000n, type: "eip1559" };
const serializedTransaction = await account.signTransaction(sign);
const hash = await client.sendRawTransaction({ serializedTransaction });
accepted("send raw transaction", hash);
accepted("block number", await client.getBlockNumber());
accepted("chain id", await client.getChainId());
const { address } = account;
await unsupported("balance", () => client.getBalance({ address }));
await unsupported("transaction count", () => client.getTransactionCount({ address }));
await unsupported("receipt", () => client.getTransactionReceipt({ hash }));
process.exit(0);
