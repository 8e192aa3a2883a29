// Writes archive.parquet as mempool-dumpster writes a day of its archive: with its own type and reading of a
// transaction, its Parquet library, and the library's settings in its cmd/merge/transactions.go. The transactions are
// signed by go-ethereum. To write the file again, in an empty folder:
//
//	cp REPOSITORY/crates/mempool-recorder/tests/archive/main.go . && go mod init archive
//	go get github.com/flashbots/mempool-dumpster@v1.2.0 && go mod tidy && go run . archive.parquet
package main

import (
	"math/big"
	"os"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/crypto/kzg4844"
	"github.com/holiman/uint256"
	"github.com/xitongsys/parquet-go-source/local"
	"github.com/xitongsys/parquet-go/parquet"
	"github.com/xitongsys/parquet-go/writer"

	dumpster "github.com/flashbots/mempool-dumpster/common"
)

// Enough that the column rawTx has several pages. They hold zeros, which gzip makes small.
const blobTransactions = 20

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	// The first account of the well-known test mnemonic.
	key := must(crypto.HexToECDSA("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))
	signer := types.LatestSignerForChainID(big.NewInt(1))
	to := common.HexToAddress("0xdAC17F958D2ee523a2206206994597C13D831ec7")
	gwei := big.NewInt(1e9)
	call := append(common.FromHex("0xa9059cbb"), make([]byte, 64)...)
	list := types.AccessList{{Address: to, StorageKeys: []common.Hash{{1}}}}

	zero := new(kzg4844.Blob)
	commitment := must(kzg4844.BlobToCommitment(zero))
	sidecar := &types.BlobTxSidecar{
		Blobs:       []kzg4844.Blob{*zero},
		Commitments: []kzg4844.Commitment{commitment},
		Proofs:      []kzg4844.Proof{must(kzg4844.ComputeBlobProof(zero, commitment))},
	}
	blob := func(nonce uint64, sidecar *types.BlobTxSidecar, hashes []common.Hash) types.TxData {
		return &types.BlobTx{
			ChainID: uint256.NewInt(1), Nonce: nonce, Gas: 21_000, To: to, BlobHashes: hashes, Sidecar: sidecar,
			GasTipCap: uint256.NewInt(1e9), GasFeeCap: uint256.NewInt(30e9), BlobFeeCap: uint256.NewInt(1e9),
		}
	}
	authorization := must(types.SignSetCode(key, types.SetCodeAuthorization{Address: to, Nonce: 9}))

	all := []types.TxData{
		&types.LegacyTx{Nonce: 0, Gas: 21_000, GasPrice: gwei, To: &to, Value: big.NewInt(1e18)},
		&types.LegacyTx{Nonce: 1, Gas: 90_000, GasPrice: gwei, Data: []byte{0x60, 0x00}},
		&types.AccessListTx{ChainID: big.NewInt(1), Nonce: 2, Gas: 60_000, GasPrice: gwei, To: &to, AccessList: list},
		&types.DynamicFeeTx{
			ChainID: big.NewInt(1), Nonce: 3, Gas: 65_000, GasTipCap: gwei, GasFeeCap: big.NewInt(30e9), To: &to, Data: call,
		},
		&types.SetCodeTx{
			ChainID: uint256.NewInt(1), Nonce: 4, Gas: 90_000, To: to, AuthList: []types.SetCodeAuthorization{authorization},
			GasTipCap: uint256.NewInt(1e9), GasFeeCap: uint256.NewInt(30e9),
		},
		// As the archive has them from before version 0.8.0.
		blob(5, nil, sidecar.BlobHashes()),
	}
	for nonce := uint64(6); nonce < 6+blobTransactions; nonce++ {
		all = append(all, blob(nonce, sidecar, sidecar.BlobHashes()))
	}

	file := must(local.NewLocalFileWriter(os.Args[1]))
	out := must(writer.NewParquetWriter(file, new(dumpster.TxSummaryEntry), 4))
	out.RowGroupSize = 128 * 1024 * 1024
	out.PageSize = 1024 * 1024
	out.CompressionType = parquet.CompressionCodec_GZIP
	for index, data := range all {
		// The first second of September 2023, then a row each millisecond.
		millis := int64(1_693_526_400_000 + index)
		raw := must(dumpster.TxToRLPString(must(types.SignNewTx(key, signer, data))))
		row, _, err := dumpster.ParseTxRLP(millis, raw)
		must(row, err)
		row.Sources = []string{dumpster.SourceTagLocal, dumpster.SourceTagBloxroute}[:1+index%2]
		if err := out.Write(&row); err != nil {
			panic(err)
		}
	}
	if err := out.WriteStop(); err != nil {
		panic(err)
	}
	if err := file.Close(); err != nil {
		panic(err)
	}
}
