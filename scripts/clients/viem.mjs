// viem: a raw transaction, and what its client asks for. Usage: node viem.mjs URL

import { createPublicClient, http } from "viem";
import { generatePrivateKey, privateKeyToAccount } from "viem/accounts";

const [url] = process.argv.slice(2);
const client = createPublicClient({ transport: http(url, { retryCount: 0 }) });
const account = privateKeyToAccount(generatePrivateKey());
const serializedTransaction = await account.signTransaction({
  chainId: 1337,
  nonce: 0,
  gas: 21000n,
  maxFeePerGas: 2_000_000_000n,
  maxPriorityFeePerGas: 1_000_000_000n,
  to: "0x" + "aa".repeat(20),
  value: 1n,
  type: "eip1559",
});
console.log(`send raw\t${await client.sendRawTransaction({ serializedTransaction })}`);
console.log(`block number\t${await client.getBlockNumber()}`);
console.log(`chain id\t${await client.getChainId()}`);
// What only a node knows is the client's own error.
const balance = await client.getBalance({ address: account.address }).catch((error) => error);
if (!(balance instanceof Error)) throw new Error(`balance: ${balance}`);
console.log(`balance\t${balance.name}`);
process.exit(0);
