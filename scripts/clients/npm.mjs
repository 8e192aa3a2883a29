// The package @flashbots/ethers-provider-bundle of npm: a bundle, its replacement, its cancellation, a private
// transaction and its cancellation. Usage: node npm.mjs URL BLOCK

import { randomUUID } from "node:crypto";
import { FlashbotsBundleProvider } from "@flashbots/ethers-provider-bundle";
import { JsonRpcProvider, Network, Wallet, keccak256 } from "ethers";

const [url, number] = process.argv.slice(2);
const block = Number(number);
// It asks this one for blocks only when it waits for inclusion.
const network = Network.from(1337);
const provider = new JsonRpcProvider(url, network, { staticNetwork: network });
provider.getBlockNumber = async () => block - 1;
const searcher = Wallet.createRandom();
const sender = Wallet.createRandom();
const flashbots = await FlashbotsBundleProvider.create(provider, searcher, url, 1337);

const signed = (nonce) =>
  sender.signTransaction({
    chainId: 1337,
    nonce,
    gasLimit: 21000,
    maxFeePerGas: 2_000_000_000,
    maxPriorityFeePerGas: 1_000_000_000,
    to: "0x" + "aa".repeat(20),
    value: 1,
    type: 2,
  });
const good = (answer) => {
  if (answer !== null && typeof answer === "object" && "error" in answer) {
    throw new Error(JSON.stringify(answer.error));
  }
  return answer;
};

const uuid = randomUUID();
for (const [name, nonce] of [["send bundle", 0], ["replace bundle", 1]]) {
  const transactions = [{ signedTransaction: await signed(nonce) }];
  const sent = good(await flashbots.sendBundle(transactions, block, { replacementUuid: uuid }));
  console.log(`${name}\t${sent.bundleHash}`);
}
good(await flashbots.cancelBundles(uuid));
console.log("cancel bundle\tok");

const raw = await signed(2);
const sent = good(await flashbots.sendPrivateTransaction({ signedTransaction: raw }, { maxBlockNumber: block }));
console.log(`send private\t${sent.transaction.hash}`);
const cancelled = good(await flashbots.cancelPrivateTransaction(keccak256(raw)));
if (cancelled !== true) throw new Error(`cancelled: ${cancelled}`);
console.log("cancel private\ttrue");
process.exit(0);
